-- Functions on the records of models. Requires changes.

-- drop_copy_if_unused removes a host from the copies of a model if it has neither a record nor a ticket of it any more.
local function drop_copy_if_unused(h, m)
  if redis.call('EXISTS', P .. 'model:' .. h .. ':' .. m) == 1 then return end
  for _, ids in ipairs({redis.call('LRANGE', P .. 'queue:' .. h, 0, -1), redis.call('SMEMBERS', P .. 'begun:' .. h)}) do
    for _, id in ipairs(ids) do
      if redis.call('HGET', P .. 'ticket:' .. id, 'model') == m then return end
    end
  end
  redis.call('SREM', P .. 'copies:' .. m, h)
end

-- drop_model removes a model from a host: record, LRU place, membership.
local function drop_model(h, m)
  local ty = redis.call('HGET', P .. 'model:' .. h .. ':' .. m, 'type')
  redis.call('DEL', P .. 'model:' .. h .. ':' .. m)
  redis.call('SREM', P .. 'models:' .. h, m)
  drop_copy_if_unused(h, m)
  if ty then redis.call('ZREM', P .. 'lru:' .. h .. ':' .. ty, m) end
end

-- set_npu records which models hold a host's NPU; '' means none.
local function set_npu(h, models)
  if models == '' then redis.call('DEL', P .. 'npu:' .. h) else redis.call('SET', P .. 'npu:' .. h, models) end
end

-- put_model writes a record from a table of strings. used_age_ms, if given, becomes used_ms by Redis' clock. The last
-- use and the LRU place never move back; a model without a last use counts as used now.
-- REQUIRES: fields.type (has_types), so that nothing fails after the first write.
local function put_model(h, m, fields)
  local key = P .. 'model:' .. h .. ':' .. m
  local old = redis.call('HMGET', key, 'type', 'used_ms')
  local used = math.max(tonumber(fields.used_ms or '0'), tonumber(old[2] or '0'))
  if fields.used_age_ms then used = math.max(used, NOW - math.max(tonumber(fields.used_age_ms), 0)) end
  if used == 0 then used = NOW end
  fields.used_age_ms, fields.used_ms = nil, num(used)
  local flat = {}
  for k, v in pairs(fields) do flat[#flat + 1] = k; flat[#flat + 1] = v end
  redis.call('HSET', key, unpack(flat))
  redis.call('SADD', P .. 'models:' .. h, m)
  if (fields.retired or '') == '' then redis.call('SADD', P .. 'copies:' .. m, h) end
  if old[1] and old[1] ~= fields.type then redis.call('ZREM', P .. 'lru:' .. h .. ':' .. old[1], m) end
  redis.call('ZADD', P .. 'lru:' .. h .. ':' .. fields.type, 'GT', num(used), m)
end

-- has_types reports whether every record has a type and so can be written.
local function has_types(models)
  for _, m in ipairs(models) do
    if type(m.fields) ~= 'table' or type(m.fields.type) ~= 'string' or m.fields.type == '' then return false end
  end
  return true
end

-- put_models writes records, each {id, fields}, and which models hold the NPU. REQUIRES: has_types.
local function put_models(h, models, npu)
  set_npu(h, npu)
  changed(h)
  for _, m in ipairs(models) do
    put_model(h, m.id, m.fields)
    if (m.fields.retired or '') == '' then changed(h, m.id) end
  end
end
