-- Expired leases and due timers, the longest due first; changes nothing but the caller's mark. ARGV: seen, limit.
local function due(key)
  local found = {}
  local members = call('ZRANGEBYSCORE', key, '-inf', now, 'WITHSCORES', 'LIMIT', 0, ARGV[2])
  for i = 1, #members, 2 do
    local job, run = match(members[i], '^(%-?%d+):(.+)$')
    local text = call('HGET', JOBS, job .. ':' .. run)
    if text then found[#found + 1] = members[i + 1] .. ' ' .. job .. ' ' .. run .. ' ' .. text end
  end
  return found
end
local function ahead(key) return call('ZRANGEBYSCORE', key, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2] or '' end
-- Who only sweeps is told of a store that went back in time, too. One that is full goes on without.
if type(redis.pcall('HSET', KEYS[1], MARK_OF, n .. ' ' .. now_text)) == 'number' then mine = n end
return { counted(), format('%.0f', us), due(LEASES), due(TIMERS), ahead(LEASES), ahead(TIMERS) }
