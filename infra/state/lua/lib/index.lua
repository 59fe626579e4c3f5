-- index: a bounded set of keys, each of a name that its index has, a sorted set by the time that it expires.

-- admit puts a name that expires in ms into an index and deletes those that make room for it, the ones that expire first. An
-- index that cannot be right begins anew.
local function admit(index, prefix, name, ms, most)
  if redis.call('TYPE', index).ok ~= 'zset' or redis.call('ZCARD', index) > 2 * most then redis.call('DEL', index) end
  redis.call('ZADD', index, num(NOW + ms), name)
  redis.call('PEXPIRE', index, num(ms))
  local rest = redis.call('ZCARD', index) - most
  for _, old in ipairs(rest > 0 and redis.call('ZRANGE', index, 0, rest - 1) or {}) do
    redis.call('DEL', prefix .. old)
    redis.call('ZREM', index, old)
  end
end
