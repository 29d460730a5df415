-- What a claim could take, by lane: changes nothing but the list of lanes, from which empty ones go.
-- ARGV: seen, tenant or '', limit, free elsewhere, number of needs, needs, then pairs of queue and free slots.
local tenant, limit, elsewhere, count = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local needs, free, paused = {}, {}, {}
for i = 1, count do needs[ARGV[5 + i]] = true end
for i = 6 + count, #ARGV, 2 do free[ARGV[i]] = tonumber(ARGV[i + 1]) end
for _, name in ipairs(call('SMEMBERS', base .. ':paused')) do paused[name] = true end

local found, empty = { counted(), format('%.0f', us) }, {}
local all = call('ZRANGE', base .. ':lanes', 0, -1, 'WITHSCORES')
for i = 1, #all, 2 do
  local lane = all[i]
  local owner, queue, need = match(lane, '^([^/]+)/([^/]+)/([^/]+)$')
  if needs[need] and (tenant == '' or tenant == owner) and (free[queue] or elsewhere) > 0
    and not paused[owner .. '/' .. queue] then
    local here, ahead, waiting = { lane, all[i + 1], '' }, nil, false
    for priority = 3, 0, -1 do
      local key = waits(priority, lane)
      local left = limit - (#here - 3) / 3
      local due = left > 0 and call('ZRANGEBYSCORE', key, '-inf', now, 'WITHSCORES', 'LIMIT', 0, left) or {}
      for k = 1, #due, 2 do
        here[#here + 1] = tostring(priority); here[#here + 1] = due[k + 1]; here[#here + 1] = due[k]
      end
      local later = call('ZRANGEBYSCORE', key, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      if later[2] and (not ahead or tonumber(later[2]) < ahead) then ahead = tonumber(later[2]) end
      waiting = waiting or #due > 0 or #later > 0
    end
    here[3] = ahead and format('%.0f', ahead) or ''
    if waiting then
      found[#found + 1] = here
    elseif limit > 0 then
      empty[#empty + 1] = lane
    end
  end
end
if #empty > 0 then spread({ 'ZREM', base .. ':lanes' }, empty, 1) end
return found
