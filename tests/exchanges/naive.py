"""Matching as the specification tells it, one binding at a time: the oracle of these tests."""


def topic_matches(pattern, words):
    """Whether a list of pattern words matches a list of words."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(topic_matches(pattern[1:], words[skipped:]) for skipped in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and topic_matches(pattern[1:], words[1:])


def split(key):
    return key.split(".") if key else []


def same(one, other):
    """A whole number is equal to a float of its value, but not within an array or a table."""
    if is_number(one) and is_number(other) and one == other:
        return True
    return repr(one) == repr(other)


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def headers_match(arguments, headers):
    """RabbitMQ's rabbit_exchange_type_headers, in Python."""
    match = arguments.get("x-match", "all")
    asked = {
        name: value
        for name, value in arguments.items()
        if name != "x-match" and (match.endswith("-with-x") or not name.startswith("x-"))
    }
    agree = [name in (headers or {}) and (value is None or same(value, headers[name])) for name, value in asked.items()]
    return all(agree) if match.startswith("all") else any(agree)


def matches(kind, binding_key, arguments, key, headers):
    """Whether a binding of an exchange of this kind takes the message."""
    return {
        "direct": lambda: binding_key == key,
        "fanout": lambda: True,
        "x-recent-history": lambda: True,
        "topic": lambda: topic_matches(split(binding_key), split(key)),
        "headers": lambda: headers_match(arguments, headers),
    }[kind]()
