"""Queues, where messages wait: the rules that Python adds to the data plane's queues."""
