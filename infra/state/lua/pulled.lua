#!lua
-- pulled: a runner says how far the weights that a queued load waits for have come.
-- KEYS[1] prefix
-- ARGV[2] host  [3] generation  [4] ticket  [5] bytes on the host, '' when the load waits for no weights (any more)
-- ARGV[6] bytes in all, 0 while that is not known
-- Returns 'ok' | 'gone' (there is no such ticket in the host's queue, or its load has begun) | 'fenced' | 'unknown'.
-- Invariant: changes no decision input, so the revision stays.
local h, id = ARGV[2], ARGV[4]
local key = P .. 'ticket:' .. id
local o = owner(h, ARGV[3])
if o ~= 'ok' then return o end
local t = hash(key)
if not t or t.host ~= h or t.state ~= 'queued' then return 'gone' end
if ARGV[5] == '' then
  redis.call('HDEL', key, 'pulling', 'bytes_done', 'bytes_total')
else
  redis.call('HSET', key, 'pulling', '1', 'bytes_done', ARGV[5], 'bytes_total', ARGV[6])
end
publish({kind = 'pulled', ticket = id, host = h, model = t.model})
return 'ok'
