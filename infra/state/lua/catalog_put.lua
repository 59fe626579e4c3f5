#!lua
-- catalog_put: a gateway publishes the models file it serves.
-- KEYS[1] prefix
-- ARGV[2] version (digest of the content)  [3] catalogue, JSON  [4…] host, driver, …: hosts that can be woken
-- Returns 1 when it changed, 0 when the same version was there.
-- Invariant: version and content change together; a host that is not known yet begins asleep.
for i = 4, #ARGV, 2 do
  local key = P .. 'host:' .. ARGV[i]
  redis.call('SADD', P .. 'hosts', ARGV[i])
  if redis.call('HSETNX', key, 'state', 'asleep') == 1 then changed() end
  redis.call('HSET', key, 'driver', ARGV[i + 1])
end
if redis.call('HGET', P .. 'catalog', 'version') == ARGV[2] then return 0 end
redis.call('HSET', P .. 'catalog', 'version', ARGV[2], 'json', ARGV[3], 'at_ms', num(NOW))
changed()
publish({kind = 'catalog', version = ARGV[2]})
return 1
