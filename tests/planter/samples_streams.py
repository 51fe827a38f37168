"""What clients do at a stream: a part of ``samples``.

    events      values of a filter in runs of ten; retention takes the first segments; ``billing`` reads all, ``search``
                one value, ``away`` holds two messages until they are gone, comes again, and leaves
"""

QUEUES = {"events": {"x-queue-type": "stream", "x-max-length": 160}}
LAST = 329                          # the number of the last message
INDEXES = 2                         # that the dump has, at least


def value_of(number):
    """Of a message; None: it has none."""
    return (None, "eu", "us")[number // 10 % 3]


def headers_of(number):
    value = value_of(number)
    return {} if value is None else {"x-stream-filter-value": value}


def _reader(story, name, prefetch, **more):
    return story.worker("events", prefetch, f"events-{name}", {"x-stream-reader": name, **more})


EU = {"x-stream-filter": "eu"}
FIRST = {"x-stream-offset": "first"}


def first_life(story):
    publish = story.publisher.publish
    away = _reader(story, "away", 2, **FIRST)
    billing, search = _reader(story, "billing", 10, **FIRST), _reader(story, "search", 5, **FIRST, **EU)
    publish("events", range(100), headers=headers_of)
    away.take(2).close()
    billing.work(90)
    search.work(25)


def second_life(story):
    _reader(story, "billing", 10).work(10)
    story.publisher.publish("events", range(100, 300), headers=headers_of)
    _reader(story, "away", 2).take(2).close()
    _reader(story, "search", 5, **EU).work(20)


def third_life(story):
    story.publisher.publish("events", range(300, LAST + 1), headers=headers_of)
    billing = _reader(story, "billing", 10).take()
    while billing.held[0][1] < LAST:
        billing.work(1).take()
    billing.work(1)
    _reader(story, "search", 5, **EU).work(20)
