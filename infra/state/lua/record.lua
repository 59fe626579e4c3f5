#!lua
-- record: a signed record and the MACs of its fields.
-- KEYS[1] prefix
-- ARGV[2] its key after the prefix  [3] most bytes that are returned
-- Returns {fields, MACs}, each as HGETALL has them, none for what is missing; {} for what is no hash or has more bytes.
-- Invariant: reads only, both in one step.
return signed(ARGV[2], ARGV[3])
