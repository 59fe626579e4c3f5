#!lua
-- model_drop: a runner found that the model's process has ended.
-- KEYS[1] prefix
-- ARGV[2] host  [3] generation  [4] model  [5] remaining NPU holders, '' none  [6] reason  [7] 1 for an eviction
-- Returns 'ok' | 'fenced' | 'unknown'.
-- Invariant: a slot becomes free in Redis only after its process has ended.
local h, m = ARGV[2], ARGV[4]
local o = owner(h, ARGV[3])
if o ~= 'ok' then return o end
drop_model(h, m)
set_npu(h, ARGV[5])
if ARGV[7] == '1' then redis.call('HINCRBY', P .. 'stats', 'evictions_total', 1) end
changed(h)
publish({kind = 'model', host = h, model = m, state = 'unloaded', reason = ARGV[6]})
return 'ok'
