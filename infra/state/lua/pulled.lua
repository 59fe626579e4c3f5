#!lua
-- pulled: a runner reports the progress of the weights that a queued load waits for.
-- KEYS[1] prefix
-- ARGV[2] host  [3] generation  [4] ticket  [5] bytes on the host, '' if the load waits for no weights (any more)
-- ARGV[6] bytes in total, 0 if unknown
-- Returns 'ok' | 'gone' (the host's queue has no such ticket, or its load has started) | 'fenced' | 'unknown'.
-- Invariant: changes no decision input, so the revision stays.
-- include changes
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
