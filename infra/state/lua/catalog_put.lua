#!lua
-- catalog_put: a gateway publishes the models file it serves.
-- KEYS[1] prefix
-- ARGV[2] version (digest of the content)  [3] catalog, JSON  [4] MAC
-- Returns 1 if it wrote the record, 0 if the same record exists.
-- Invariant: all fields of the record change together.
-- include changes
redis.call('SET', P .. 'format', FORMAT)
epoch()
local have = redis.call('HMGET', P .. 'catalog', 'version', 'mac')
if have[1] == ARGV[2] and have[2] == ARGV[4] then return 0 end
redis.call('DEL', P .. 'catalog')
redis.call('HSET', P .. 'catalog', 'version', ARGV[2], 'json', ARGV[3], 'mac', ARGV[4])
changed()
publish({kind = 'catalog', version = ARGV[2]})
return 1
