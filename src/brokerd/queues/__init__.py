"""Where messages wait: the rules of queues over the data plane's."""
