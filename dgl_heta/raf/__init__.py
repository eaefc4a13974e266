"""Relation-Aggregation-First execution (Heta §4): collectives, exchange, module wrappers."""
