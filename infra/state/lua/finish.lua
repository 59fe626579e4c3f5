#!lua flags=allow-oom
-- finish: a runner ends a ticket that it started (or refuses one that it never started).
-- KEYS[1] prefix
-- ARGV[2] host  [3] generation  [4] ticket  [5] state: ready | failed  [6] fields, JSON object of strings (code, message, evicted, load_ms, …)
-- ARGV[7] host fields to write too, JSON object of strings: what the load taught about its memory need
-- ARGV[8] records to write too, as for model_put
-- Returns {'ok', gateway, …}: the gateways that still wait | {'gone', gateway, …} | {'fenced'} | {'unknown'} | {'no
-- type'}. A ticket that already ended in the same way is 'gone', with the gateways that waited then and whose leases
-- still run, since the first response may have been lost. One that ended otherwise, or does not exist, is 'gone'
-- without gateways.
-- Invariant: a ticket ends once; the first outcome stays. Records are written even if the ticket is gone. A failed load
-- leaves the NPU.
-- include tickets
local h, id, fields, models = ARGV[2], ARGV[4], cjson.decode(ARGV[6]), cjson.decode(ARGV[8])
local key = P .. 'ticket:' .. id
local o = owner(h, ARGV[3])
if o == 'ok' and #models > 0 and not awake(redis.call('HGET', P .. 'host:' .. h, 'state')) then o = 'unknown' end
if o ~= 'ok' then return {o} end
if not has_types(models) then return {'no type'} end
if #models > 0 then
  put_models(h, models)
  for _, m in ipairs(models) do publish({kind = 'model', host = h, model = m.id, state = m.fields.state}) end
end
local t = hash(key)
if not t or t.host ~= h then return {'gone'} end
if t.state == ARGV[5] then
  local still = redis.call('ZRANGEBYSCORE', P .. 'waiters:' .. id, num(NOW), '+inf')
  table.insert(still, 1, 'gone')
  return still
end
if not pending(t.state) then return {'gone'} end
fields.kind, fields.model, fields.host = nil, nil, nil
for k, v in pairs(fields) do redis.call('HSET', key, k, v) end
for k, v in pairs(cjson.decode(ARGV[7])) do redis.call('HSET', P .. 'host:' .. h, k, v) end
live_waiters(id)
local out = redis.call('ZRANGE', P .. 'waiters:' .. id, 0, -1)
close(id, ARGV[5])
if t.npu == '1' and redis.call('EXISTS', P .. 'model:' .. h .. ':' .. t.model) == 0 then release_npu(h, t.model) end
if t.kind == 'load' and ARGV[5] == 'ready' and fields.cold == '1' then redis.call('HINCRBY', P .. 'stats', 'cold_starts_total', 1) end
changed(h)
announce(id, t, ARGV[5])
table.insert(out, 1, 'ok')
return out
