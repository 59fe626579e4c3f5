-- Writes one entry to the hash of its key.
--
-- KEYS[1]  mm:<pool>:<signature>:<key>
-- ARGV[1]  field: the strong digest of the medium
-- ARGV[2]  value
-- ARGV[3]  time to live of the hash, ms
-- ARGV[4]  most fields of a hash
--
-- Returns 1 if the value was stored, -1 if the hash is full.
-- Invariant: no other field is touched.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[4]) then
  return -1
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
