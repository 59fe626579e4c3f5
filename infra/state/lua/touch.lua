#!lua
-- touch: a gateway reports uses of models, batched and after the requests.
-- KEYS[1] prefix
-- ARGV[2] operation id: repeating an id within a minute changes nothing  [3] number of uses  [4] number of fields to set  then per use: host, model, age ms  then pairs: statistics field, value  then pairs: statistics field, increment
-- Returns the number of uses that were recorded (uses of a model that is gone are skipped).
-- Invariant: times are by Redis' clock, less the age; an LRU place never moves back, and no record is recreated.
local n, sets, done = tonumber(ARGV[3]), tonumber(ARGV[4]), 0
if not redis.call('SET', P .. 'op:' .. ARGV[2], 'touch', 'NX', 'PX', 60000) then return 0 end
for i = 0, n - 1 do
  local h, m, age = ARGV[5 + 3 * i], ARGV[6 + 3 * i], tonumber(ARGV[7 + 3 * i])
  local host, key = P .. 'host:' .. h, P .. 'model:' .. h .. ':' .. m
  local r = redis.call('HMGET', key, 'type', 'used_ms')
  if r[1] then
    local used = NOW - math.max(age, 0)
    if used > tonumber(r[2] or '0') then
      redis.call('HSET', key, 'used_ms', num(used))
      redis.call('ZADD', P .. 'lru:' .. h .. ':' .. r[1], 'GT', num(used), m)
    end
    if used > tonumber(redis.call('HGET', host, 'active_ms') or '0') then redis.call('HSET', host, 'active_ms', num(used)) end
    done = done + 1
  end
end
local first = 5 + 3 * n
if sets > 0 then redis.call('HSET', P .. 'stats', unpack(ARGV, first, first + 2 * sets - 1)) end
for i = first + 2 * sets, #ARGV, 2 do redis.call('HINCRBYFLOAT', P .. 'stats', ARGV[i], ARGV[i + 1]) end
return done
