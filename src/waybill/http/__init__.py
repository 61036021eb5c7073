"""Jobs over HTTP: the same handlers, with an Open Job Spec server instead of a broker.

    jobs = Jobs("http://localhost:8080")

`waybill.Jobs` and `waybill.Worker` accept such a URL, like one of AMQP. This package implements it.
"""
