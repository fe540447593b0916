"""What runs on workers: the functions that futures call, and the contracts that driver and workers share.

Acting: `play` (one game, start to end) uses `game` (the environment), `agents` (who answers), `prompts` and
`action_samplers`; `host` keeps a worker's games on one event loop beside its `engine`, `errands` takes them there and
their results back.
Learning: `learn` (the worker's plugin and its Dask tasks) holds a `learner`, which takes a batch of `learner_contracts`
through `prefixes` and `collate` to the `policy_model`, one of the `algorithms` and the optimiser, and saves
`checkpoints`.
Storing: `shards` holds the Arrow schemas that `pipeline.episode_store` writes and everyone reads.
Nothing here imports `pipeline`.
"""
