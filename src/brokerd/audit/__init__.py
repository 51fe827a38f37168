"""What readers of segments from outside share: Spark jobs, inspection.  See ``layout``."""
