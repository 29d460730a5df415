-- Stores a definition. ARGV: seen, who, tenant, hash, flow, body, origin (none: without).
local tenant, hash = ARGV[3], ARGV[4]
local key = base .. ':def:' .. tenant .. '/' .. hash
local new = call('EXISTS', key) == 0
if new then
  local number = next_stamp(0)
  call('HSET', key, 'flow', ARGV[5], 'body', ARGV[6], 'created', now, 'number', number)
  call('ZADD', base .. ':defs:' .. tenant, number, hash)
  call('HSET', base .. ':latest:' .. tenant, ARGV[5], hash)
  call('SADD', base .. ':known', tenant .. '/' .. hash)
end
if ARGV[7] then call('HSET', key, 'origin', ARGV[7]) else call('HDEL', key, 'origin') end
finish(ARGV[2])
return { counted(), format('%.0f', us), new and '1' or '0' }
