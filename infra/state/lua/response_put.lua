#!lua
-- response_put: stores a response of the Responses API. The oldest ones of its tenant make room for it.
-- KEYS[1] prefix
-- ARGV[2] tenant  [3] id  [4] value  [5] ms to keep it  [6] maximum bytes of a tenant  [7] maximum responses of a tenant
-- Returns 1.
-- Invariant: the values of a tenant have at most that many bytes together, as its index counts them; what has expired
-- does not count.
-- include base
local tenant, id, value, keep, most, count = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local index = P .. 'responses:' .. tenant
if redis.call('ZCARD', index) > 2 * count then redis.call('DEL', index) end
redis.call('ZREMRANGEBYSCORE', index, '-inf', num(NOW))
local held = redis.call('ZRANGE', index, 0, -1)
local sum, first = #value, 1
for i = 1, #held do sum = sum + (tonumber(string.match(held[i], ' (%d+)$')) or 0) end
while first <= #held and (sum > most or #held - first + 2 > count) do
  sum = sum - (tonumber(string.match(held[first], ' (%d+)$')) or 0)
  redis.call('DEL', P .. 'response:' .. tenant .. ':' .. (string.match(held[first], '^%S+') or ''))
  redis.call('ZREM', index, held[first])
  first = first + 1
end
redis.call('SET', P .. 'response:' .. tenant .. ':' .. id, value, 'PX', num(keep))
redis.call('ZADD', index, num(NOW + keep), id .. ' ' .. #value)
redis.call('PEXPIRE', index, num(keep))
return 1
