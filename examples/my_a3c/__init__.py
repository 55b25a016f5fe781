import gymnasium

gymnasium.register(
    "Thermostat-v0", entry_point="my_a3c.thermostat:Thermostat", max_episode_steps=100
)
