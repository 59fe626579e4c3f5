#!lua flags=allow-oom
-- beat: a runner reports that it is alive, and what is open on each model, and when it was used last.
-- KEYS[1] prefix
-- ARGV[2] host  [3] generation  [4] 1 if any request is open or was open since the last beat, else 0  [5…] model, open requests,
-- ms since its last use or -1 if that was said before, ms since it was needed or -1 if it never was, …
-- Returns {'ok', revision of the host, then per model ms since its last use, '' unknown} | {'fenced'} | {'unknown'}
-- (register again: Redis lost the host, considered it lost, or recorded it as asleep and now wants it awake).
-- Invariant: changes no decision input except in-flight counts and times, so the revision stays. No time moves back.
-- include base
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
local out = {'ok', f[4] or '0'}
for i = 5, #ARGV, 4 do
  local m, used = ARGV[i], ''
  local model = P .. 'model:' .. h .. ':' .. m
  local r = redis.call('HMGET', model, 'type', 'needed_ms')
  local ty = r[1]
  if ty then
    local lru = P .. 'lru:' .. h .. ':' .. ty
    redis.call('HSET', model, 'in_flight', ARGV[i + 1])
    local age, needed = tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
    if needed >= 0 and NOW - needed > tonumber(r[2] or '0') then redis.call('HSET', model, 'needed_ms', num(NOW - needed)) end
    if age >= 0 then redis.call('ZADD', lru, 'GT', num(NOW - age), m) end
    local score = redis.call('ZSCORE', lru, m)
    if score then used = num(NOW - tonumber(score)) end
  end
  out[#out + 1] = used
end
return out
