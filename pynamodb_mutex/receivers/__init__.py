"""Receivers of the signals for OpenTelemetry, Prometheus and CloudWatch.

Each is a module of its own; import it and call its ``install``.
"""
