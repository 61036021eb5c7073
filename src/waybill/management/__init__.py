"""RabbitMQ's management HTTP API, and metrics under RabbitMQ's names, over a broker of this process."""
