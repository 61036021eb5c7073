"""Jobs over HTTP: the same handlers, with an Open Job Spec server in the place of a broker.

    jobs = Jobs("http://localhost:8080")

`waybill.Jobs` and `waybill.Worker` take such a URL as they take one of AMQP. What they do then is here.
"""
