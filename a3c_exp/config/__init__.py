"""From YAML to the `Experiment` record: the schema, the builder, and the checks across
components."""
