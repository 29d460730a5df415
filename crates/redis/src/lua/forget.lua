-- Removes runs that ended long ago, or their events. ARGV: seen, verb, ended by, runs.
local removed = 0

-- Takes one from the number of runs that an entry of the feed still leads to; the last one takes the entry.
local function release_feed(number)
  if call('HINCRBY', base .. ':feed:live', number, -1) <= 0 then
    call('HDEL', base .. ':feed:live', number)
    call('XDEL', base .. ':feed', number .. '-0')
  end
end

local function forget_log(run, number)
  local log = base .. ':log:' .. run
  local size = call('XLEN', log)
  if size > 500 then
    -- Too much for one call: `purge` takes it away in parts.
    local name = number .. '-' .. (n + 1)
    call('RENAME', log, base .. ':trash:' .. name)
    call('HSET', base .. ':trash', name, '0')
  elseif size > 0 then
    local last
    for _, entry in ipairs(call('XRANGE', log, '-', '+')) do
      if entry[2][10] ~= last then
        last = entry[2][10]
        release_feed(last)
      end
    end
    call('UNLINK', log)
  end
end

for i = 4, #ARGV do
  local run = ARGV[i]
  local key = base .. ':run:' .. run
  local row = call('HMGET', key, 'status', 'ended', 'number', 'flow', 'labels', 'trimmed', 'jobs')
  if row[1] and TERMINAL[row[1]] and row[2] and tonumber(row[2]) <= tonumber(ARGV[3]) then
    local all = call('HGETALL', key)
    local list = row[6] and ':trimmed' or ':ended'
    -- A lease that outlived its run may have written after the events were trimmed.
    if not row[6] or ARGV[2] == 'remove' then forget_log(run, row[3]) end
    if ARGV[2] == 'remove' then
      for k = 1, #all, 2 do
        local job = match(all[k], '^j(%-?%d+)$')
        if job then unindex(run, job, parse(all[k + 1])) end
      end
      local tenant, id = match(run, '^([^/]+)/(.+)$')
      for label in string.gmatch(row[5] or '', '%S+') do drop(base .. ':label:' .. tenant .. ':' .. label, id) end
      relist(run, row[4], row[3], row[1], row[2], nil, nil, base .. list)
      call('UNLINK', key, base .. ':state:run:' .. run)
      removed = removed + 1
    elseif not row[6] then
      local gone = {}
      for k = 1, #all, 2 do
        if match(all[k], '^[sm]%d+$') then gone[#gone + 1] = all[k] end
      end
      if #gone > 0 then spread({ 'HDEL', key }, gone, 1) end
      call('HSET', key, 'trimmed', '1')
      drop(base .. ':ended', run)
      put(base .. ':trimmed', row[2], run)
      removed = removed + 1
    end
  end
end
if removed > 0 then finish() end
return { tostring(n), format('%.0f', us), tostring(removed) }
