"""One namespace of queues, exchanges and bindings, and the one door through which users reach it."""
