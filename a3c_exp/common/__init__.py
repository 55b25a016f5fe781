"""Basics that every layer may use."""
