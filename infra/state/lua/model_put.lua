#!lua
-- model_put: a runner writes the record of a model it is loading, has loaded or is draining.
-- KEYS[1] prefix
-- ARGV[2] host  [3] generation  [4] model  [5] fields, JSON object of strings (type is needed; used_age_ms, if there, becomes used_ms)
-- ARGV[6] NPU holders of the host, '' none
-- Returns 'ok' | 'fenced' | 'unknown' (also of a host that is not awake) | 'no type'.
-- Invariant: only the host's own generation writes; the LRU place never moves back.
local h, m, fields = ARGV[2], ARGV[4], cjson.decode(ARGV[5])
local o = owner(h, ARGV[3])
if o == 'ok' and not awake(redis.call('HGET', P .. 'host:' .. h, 'state')) then o = 'unknown' end
if o ~= 'ok' then return o end
if not has_type(fields) then return 'no type' end
put_model(h, m, fields)
set_npu(h, ARGV[6])
changed(h, (fields.retired or '') == '' and m)
publish({kind = 'model', host = h, model = m, state = fields.state})
return 'ok'
