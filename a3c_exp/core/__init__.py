"""The asynchronous actor-critic: experiments, actors, workers, and the parameters that workers
share."""
