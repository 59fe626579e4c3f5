#!lua
-- catalog_put: a gateway publishes the models file it serves.
-- KEYS[1] prefix
-- ARGV[2] version (digest of the content)  [3] catalogue, JSON  [4] serial  [5] MAC  [6] MAC of the present record, '' none
-- ARGV[7…] host, driver, …: hosts that can be woken
-- Returns 1 if it wrote the record, 0 if the same record exists, -1 if the present record is not the expected one.
-- Invariant: all fields of the record change together; a new host starts asleep.
for i = 7, #ARGV, 2 do
  local key = P .. 'host:' .. ARGV[i]
  redis.call('SADD', P .. 'hosts', ARGV[i])
  if redis.call('HSETNX', key, 'state', 'asleep') == 1 then changed(ARGV[i]) end
  redis.call('HSET', key, 'driver', ARGV[i + 1])
end
local have = redis.pcall('HGET', P .. 'catalog', 'mac')
if type(have) == 'table' then redis.call('DEL', P .. 'catalog') end -- not a hash
if type(have) ~= 'string' then have = '' end
if have == ARGV[5] and redis.call('HGET', P .. 'catalog', 'serial') == ARGV[4] then return 0 end
if have ~= ARGV[6] then return -1 end
redis.call('DEL', P .. 'catalog')
redis.call('HSET', P .. 'catalog', 'version', ARGV[2], 'json', ARGV[3], 'serial', ARGV[4], 'mac', ARGV[5])
changed()
publish({kind = 'catalog', version = ARGV[2]})
return 1
