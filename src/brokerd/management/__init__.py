"""The management process: HTTP API and metrics, ``brokerd management``.

The broker starts this process beside itself and keeps it alive (``server/management``).  It serves HTTP on
``http_port`` and asks the broker over the control socket alone, in the name of the user who has logged in: the broker
decides rights.  So HTTP's parsers and its answers of many megabytes never stand between two messages, and no fault of
them can end the broker.  The process ends with its broker.

    main        the process: settings in, port open, end with the broker
    doors       ports, TLS and paths that it listens on
    protocol    limits of one connection: head, time, idle clients
    websocket   AMQP over WebSocket
    control     asks the broker
    app         one HTTP request: who asks, which route, what answer
    routes      finds the route of a raw path
    logins      who asks: Basic, sessions of pages
    answers     JSON, errors in RabbitMQ's shape and as problem+json
    lists       filters, order, pages and columns of lists
    v2          /api/v2: every operation of the table, sessions, live samples
    openapi     the description of /api/v2
    samples     counters, asked for every few seconds, and the rates between them
    metrics     /metrics
    rabbit      /api as RabbitMQ's, with the modules ``rabbit_*``
"""
