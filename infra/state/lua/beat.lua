#!lua
-- beat: a runner reports that it is alive, and how many requests are open on each model.
-- KEYS[1] prefix
-- ARGV[2] host  [3] generation  [4] 1 if any request is open or was open since the last beat, else 0  [5…] model, open requests, …
-- Returns {'ok', revision of the host} | {'fenced'} | {'unknown'} (register again: Redis lost the host,
-- considered it lost, or recorded it as asleep and now wants it awake).
-- Invariant: changes no decision input except in-flight counts and times, so the revision stays.
local h = ARGV[2]
local key = P .. 'host:' .. h
local f = redis.call('HMGET', key, 'generation', 'state', 'lost_ms', 'rev')
if not f[1] then return {'unknown'} end
if f[1] ~= ARGV[3] then return {'fenced'} end
if f[2] == 'waking' and not stopping(h) then return {'unknown'} end
if ARGV[4] == '1' then
  redis.call('HSET', key, 'seen_ms', num(NOW), 'active_ms', num(NOW))
else
  redis.call('HSET', key, 'seen_ms', num(NOW))
end
if f[3] then redis.call('HDEL', key, 'lost_ms') end
for i = 5, #ARGV, 2 do
  local model = P .. 'model:' .. h .. ':' .. ARGV[i]
  if redis.call('EXISTS', model) == 1 then redis.call('HSET', model, 'in_flight', ARGV[i + 1]) end
end
return {'ok', f[4] or '0'}
