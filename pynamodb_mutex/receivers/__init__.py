"""Ready receivers of the signals: for OpenTelemetry, Prometheus and CloudWatch.

Each is a module that is imported by itself, and installed by a call of its ``install``.
"""
