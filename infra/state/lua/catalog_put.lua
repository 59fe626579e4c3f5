#!lua
-- catalog_put: a gateway publishes the models file it serves.
-- KEYS[1] prefix
-- ARGV[2] version (digest of the content)  [3] catalog, JSON  [4] MAC  [5…] host, driver, …: hosts that can be woken
-- Returns 1 if it wrote the record, 0 if the same record exists.
-- Invariant: all fields of the record change together; a new host starts asleep.
-- include changes
redis.call('SET', P .. 'format', FORMAT)
epoch()
for i = 5, #ARGV, 2 do
  local key = P .. 'host:' .. ARGV[i]
  redis.call('SADD', P .. 'hosts', ARGV[i])
  if redis.call('HSETNX', key, 'state', 'asleep') == 1 then changed(ARGV[i]) end
  redis.call('HSET', key, 'driver', ARGV[i + 1])
end
local have = redis.call('HMGET', P .. 'catalog', 'version', 'mac')
if have[1] == ARGV[2] and have[2] == ARGV[4] then return 0 end
redis.call('DEL', P .. 'catalog')
redis.call('HSET', P .. 'catalog', 'version', ARGV[2], 'json', ARGV[3], 'mac', ARGV[4])
changed()
publish({kind = 'catalog', version = ARGV[2]})
return 1
