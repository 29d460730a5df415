-- ARGV: seen, who, count, then each commit with its number of arguments first (see `encode.rs`).
local FIXED = { 'version', 'status', 'events', 'last', 'number', 'flow', 'jobs', 'ended', 'started' }
local paused
local function is_paused(tenant, queue)
  if not paused then
    paused = {}
    for _, name in ipairs(call('SMEMBERS', base .. ':paused')) do paused[name] = true end
  end
  return paused[tenant .. '/' .. queue]
end

-- Whether a job is as the commit needs it.
local function fits(kind, text, attempt, token)
  if kind == 'R' then return true end
  if not text then return false end
  local prefix = token .. ' ' .. attempt .. ' '
  if string.sub(text, 1, #prefix) ~= prefix then return false end
  if kind == 'E' then return tonumber(match(text, '^%S+ %d+ %d+ (%d+)')) <= now end
  if kind == 'D' then
    local j = parse(text)
    return j.held == '0' and tonumber(j.due) <= now
  end
  return true
end

local function commit(o)
  local run, version, flags, status = ARGV[o + 2], ARGV[o + 3], tonumber(ARGV[o + 4]), ARGV[o + 5]
  local others, leases, events, adds = ARGV[o + 11], tonumber(ARGV[o + 12]), tonumber(ARGV[o + 13]), tonumber(ARGV[o + 14])
  local hint = tonumber(ARGV[o + 15])
  local new = version == ''
  local uses = o + (new and 19 or 15)
  local pushed = uses + leases * 5
  local added = pushed + events * 5
  local key, tenant = base .. ':run:' .. run, match(run, '^[^/]+')

  local fields = { unpack(FIXED) }
  for i = 0, leases - 1 do fields[#fields + 1] = 'j' .. ARGV[uses + i * 5 + 2] end
  for i = 0, adds - 1 do fields[#fields + 1] = 'j' .. ARGV[added + i * 11 + 1] end
  local row = fetch(key, fields)

  if new then
    if row[1] then return 'E' end
    if call('SISMEMBER', base .. ':known', tenant .. '/' .. ARGV[o + 18]) == 0 then return 'D' end
  elseif row[1] ~= version then
    return 'C' .. (row[1] or '')
  end
  local named, kept, there = {}, {}, #FIXED
  for i = 0, leases - 1 do
    local at = uses + i * 5
    local kind, job = ARGV[at + 1], ARGV[at + 2]
    if not fits(kind, row[there + i + 1], ARGV[at + 3], ARGV[at + 4]) then return 'S' .. job end
    named[job] = true
    if kind == 'K' then kept[job] = true end
  end
  local twice = {}
  for i = 0, adds - 1 do
    local job = ARGV[added + i * 11 + 1]
    local taken
    if others == 'D' then taken = kept[job] else taken = row[there + leases + i + 1] and (kept[job] or not named[job]) end
    if taken or twice[job] then return 'S' .. job end
    twice[job] = true
  end

  -- Nothing is refused from here on.
  local set, gone, jobs = {}, {}, tonumber(row[7] or 0)
  local number = new and next_stamp(hint) or row[5]
  for i = 0, leases - 1 do
    local at, text = uses + i * 5, row[there + i + 1]
    local kind, job = ARGV[at + 1], ARGV[at + 2]
    if kind == 'K' then
      local j = parse(text)
      j.lines = tonumber(j.lines) + tonumber(ARGV[at + 5])
      set['j' .. job] = render(j)
    elseif text then
      if kind == 'F' or kind == 'E' then drop(LEASES, job .. ':' .. run) else unindex(run, job, parse(text)) end
      gone['j' .. job] = true
      jobs = jobs - 1
    end
  end
  local kept_count = 0
  for _ in pairs(kept) do kept_count = kept_count + 1 end
  if others ~= '' and jobs > kept_count then
    local all = call('HGETALL', key)
    for i = 1, #all, 2 do
      local job = match(all[i], '^j(%-?%d+)$')
      if job and not named[job] then
        local j = parse(all[i + 1])
        if others == 'D' then
          unindex(run, job, j)
          gone['j' .. job] = true
          jobs = jobs - 1
        elseif j.token == '-' and (j.held == '1') == (others == 'R') then
          unindex(run, job, j)
          j.held = others == 'R' and '0' or '1'
          index(run, job, j)
          set['j' .. job] = render(j)
        end
      end
    end
  end
  local granted = {}
  for i = 0, adds - 1 do
    local at = added + i * 11
    local job = ARGV[at + 1]
    local j = { token = '-', attempt = ARGV[at + 2], lines = 0, expires = 0, released = 0, leased = 0, worker = '-',
      number = next_stamp(hint), priority = ARGV[at + 5], due = ARGV[at + 3], held = ARGV[at + 4],
      name = ARGV[at + 6], queue = ARGV[at + 7], need = ARGV[at + 8] }
    if ARGV[at + 9] ~= '' and tonumber(job) >= 0 and j.held == '0' and tonumber(j.due) <= now
      and not is_paused(tenant, j.queue) then
      j.token, j.worker, j.leased, j.expires = ARGV[at + 9], ARGV[at + 11], now, now + tonumber(ARGV[at + 10])
      granted[#granted + 1] = job
    end
    index(run, job, j)
    set['j' .. job] = render(j)
    gone['j' .. job] = nil
    jobs = jobs + 1
  end

  local ts = math.max(now, tonumber(row[4] or now))
  local first = tonumber(row[3] or 0) + 1
  local last = push(run, ts, first - 1, pushed, events, 5, set)
  feed(run, ts, first, last)
  local next_version = new and 1 or tonumber(version) + 1
  set.version, set.events, set.jobs = next_version, last, jobs
  if last >= first or new then set.last = ts end
  -- A mend of jobs leaves the row alone.
  if flags % 16 < 8 then
    set.completed, set.failed, set.retries, set.state = ARGV[o + 6], ARGV[o + 7], ARGV[o + 8], ARGV[o + 10]
    if ARGV[o + 9] ~= '' then set.failure = ARGV[o + 9] end
    if status ~= row[2] then set.status = status end
    local terminal = flags % 2 == 1
    if flags % 4 >= 2 and not row[9] then set.started = ts end
    if terminal then set.ended = ts end
    local flow = new and ARGV[o + 16] or row[6]
    if new then
      set.number, set.created, set.flow, set.start = number, now, flow, ARGV[o + 17]
      flows[tenant .. '/' .. flow] = true
      set.labels = ARGV[o + 19]
      for label in string.gmatch(ARGV[o + 19], '%S+') do
        put(base .. ':label:' .. tenant .. ':' .. label, number, match(run, '/(.+)$'))
      end
    end
    if terminal or status ~= row[2] then
      relist(run, flow, number, row[2], row[8], status, terminal and ts or row[8], base .. ':ended')
    end
    if flags % 8 >= 4 then call('UNLINK', base .. ':state:run:' .. run) end
  end
  local remove = {}
  for field in pairs(gone) do remove[#remove + 1] = field end
  if #remove > 0 then spread({ 'HDEL', key }, remove, 1) end
  set_fields(key, set)
  return format('%d %d %d ', next_version, first, ts) .. table.concat(granted, ',')
end

local answers, landed, o = { '', format('%.0f', us) }, false, 3
for i = 1, tonumber(ARGV[3]) do
  local answer = commit(o)
  answers[i + 2] = answer
  if match(answer, '^%d') then landed = true end
  o = o + tonumber(ARGV[o + 1])
end
if landed then finish(ARGV[2]) end
answers[1] = tostring(n)
return answers
