-- Depths by lane of a tenant. ARGV: seen, tenant.
local rows, prefix = {}, ARGV[2] .. '/'
local function row(lane)
  if string.sub(lane, 1, #prefix) ~= prefix then return {} end
  rows[lane] = rows[lane] or { ready = 0, delayed = 0, held = 0, leased = 0, oldest = '' }
  return rows[lane]
end
for _, lane in ipairs(call('ZRANGE', base .. ':lanes', 0, -1)) do
  if string.sub(lane, 1, #prefix) == prefix then
    for priority = 0, 3 do
      local key = waits(priority, lane)
      local ready, all = call('ZCOUNT', key, '-inf', now), call('ZCARD', key)
      if all > 0 then
        local r, oldest = row(lane), call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
        r.ready, r.delayed = r.ready + ready, r.delayed + all - ready
        if ready > 0 and (r.oldest == '' or tonumber(oldest) < tonumber(r.oldest)) then r.oldest = oldest end
      end
    end
  end
end
local waiting_back = call('HGETALL', base .. ':held')
for i = 1, #waiting_back, 2 do row(waiting_back[i]).held = waiting_back[i + 1] end
local looked = {}
for _, member in ipairs(call('ZRANGE', LEASES, 0, -1)) do
  -- A format before had the job's key before the run.
  local run = match(member, '^%-?%d+:(.+)$') or member
  if string.sub(run, 1, #prefix) == prefix and not looked[run] then
    looked[run] = true
    local _, texts = jobs_of(run)
    for _, text in ipairs(texts) do
      local j = text and parse(text)
      if j and j.token ~= '-' then
        local r = row(lane_of(run, j))
        r.leased = r.leased + 1
      end
    end
  end
end
local answers = { counted(), format('%.0f', us), {} }
for _, name in ipairs(call('SMEMBERS', base .. ':paused')) do
  if string.sub(name, 1, #prefix) == prefix then table.insert(answers[3], string.sub(name, #prefix + 1)) end
end
for lane, r in pairs(rows) do
  answers[#answers + 1] = string.sub(lane, #prefix + 1) .. ' ' .. r.ready .. ' ' .. r.delayed .. ' ' .. r.held .. ' '
    .. r.leased .. ' ' .. r.oldest
end
return answers
