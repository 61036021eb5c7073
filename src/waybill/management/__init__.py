"""RabbitMQ's management HTTP API and its metrics, for a broker in this process."""
