"""Basics that every layer may use: array types and layouts, and the rule for plugins."""
