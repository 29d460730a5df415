-- ARGV: seen, who, count, then each commit with its number of arguments first (see `encode.rs`).
-- Here every microsecond counts: arguments come as they are stored, and texts are not taken apart without need.
local FIXED = { 'version', 'status', 'events', 'last', 'jobs', 'started' }
local FIXED_COUNT = #FIXED
local paused
local function is_paused(tenant, queue)
  if not paused then
    paused = {}
    for _, name in ipairs(call('SMEMBERS', base .. ':paused')) do paused[name] = true end
  end
  return paused[tenant .. '/' .. queue]
end

-- Whether a job is as the commit needs it. A job's text begins with its token and attempt.
local function fits(kind, text, prefix, lines)
  if kind == 'R' then return true end
  if not text or sub(text, 1, #prefix) ~= prefix then return false end
  if kind == 'E' then
    local there, expires = match(text, '^%S+ %d+ (%d+) (%d+)')
    return there == lines and tonumber(expires) <= now
  end
  if kind == 'D' then
    local j = parse(text)
    return j.held == '0' and tonumber(j.due) <= now
  end
  return true
end

-- Jobs that the commit does not name: dropped, held or released.
local function change_others(run, key, others, named, set, gone)
  local all, dropped = call('HGETALL', key), 0
  for i = 1, #all, 2 do
    local job = match(all[i], '^j(%-?%d+)$')
    if job and not named[job] then
      local j = parse(all[i + 1])
      if others == 'D' then
        unindex(run, job, j)
        gone[#gone + 1] = all[i]
        dropped = dropped + 1
      elseif j.token == '-' and (j.held == '1') == (others == 'R') then
        unindex(run, job, j)
        j.held = others == 'R' and '0' or '1'
        index(run, job, j)
        set[#set + 1] = all[i]
        set[#set + 1] = render(j)
      end
    end
  end
  return dropped
end

-- Adds a job, leased right away where that is asked for and can be granted. True where it was.
local function add_job(run, tenant, at, hint, set)
  local job, due, held, number = ARGV[at + 1], ARGV[at + 3], ARGV[at + 4], next_stamp(hint)
  local rest = number .. ' ' .. ARGV[at + 5] .. ' ' .. due .. ' ' .. held .. ' ' .. ARGV[at + 6] .. ' ' .. ARGV[at + 7] .. ' '
    .. ARGV[at + 8]
  set[#set + 1] = 'j' .. job
  if ARGV[at + 9] ~= '' and sub(job, 1, 1) ~= '-' and held == '0' and tonumber(due) <= now
    and not is_paused(tenant, ARGV[at + 7]) then
    local expires = text_of(now + tonumber(ARGV[at + 10]))
    put(LEASES, expires, job .. ':' .. run)
    set[#set + 1] = ARGV[at + 9] .. ' ' .. ARGV[at + 2] .. ' 0 ' .. expires .. ' 0 ' .. now_text .. ' ' .. ARGV[at + 11]
      .. ' ' .. rest
    return true
  end
  index(run, job, { token = '-', held = held, number = number, priority = ARGV[at + 5], due = due,
    queue = ARGV[at + 7], need = ARGV[at + 8] })
  set[#set + 1] = '- ' .. ARGV[at + 2] .. ' 0 0 0 0 - ' .. rest
end

local function commit(o)
  local run, version, flags, status = ARGV[o + 2], ARGV[o + 3], tonumber(ARGV[o + 4]), ARGV[o + 5]
  local others, leases, events, adds = ARGV[o + 9], tonumber(ARGV[o + 10]), tonumber(ARGV[o + 11]), tonumber(ARGV[o + 12])
  local hint = tonumber(ARGV[o + 13])
  local new = version == ''
  local uses = o + (new and 17 or 13)
  local pushed = uses + leases * 4
  local added = pushed + events * 5
  local key, tenant = base .. ':run:' .. run, match(run, '^[^/]+')

  local fields = { 'version', 'status', 'events', 'last', 'jobs', 'started' }
  for i = 0, leases - 1 do fields[#fields + 1] = 'j' .. ARGV[uses + i * 4 + 2] end
  for i = 0, adds - 1 do fields[#fields + 1] = 'j' .. ARGV[added + i * 11 + 1] end
  local row = fetch(key, fields)

  if new then
    if row[1] then return 'E' end
    if call('SISMEMBER', base .. ':known', tenant .. '/' .. ARGV[o + 16]) == 0 then return 'D' end
  elseif row[1] ~= version then
    return 'C' .. (row[1] or '')
  end
  local named, kept, kept_count = {}, {}, 0
  for i = 0, leases - 1 do
    local at = uses + i * 4
    local kind, job = ARGV[at + 1], ARGV[at + 2]
    if not fits(kind, row[FIXED_COUNT + i + 1], ARGV[at + 3], ARGV[at + 4]) then return 'S' .. job end
    named[job] = true
    if kind == 'K' then kept[job] = true; kept_count = kept_count + 1 end
  end
  local twice = {}
  for i = 0, adds - 1 do
    local job = ARGV[added + i * 11 + 1]
    local taken
    if others == 'D' then
      taken = kept[job]
    else
      taken = row[FIXED_COUNT + leases + i + 1] and (kept[job] or not named[job])
    end
    if taken or twice[job] then return 'S' .. job end
    twice[job] = true
  end

  -- Nothing is refused from here on.
  local set, gone, jobs = {}, {}, tonumber(row[5] or 0)
  local number = new and next_stamp(hint)
  for i = 0, leases - 1 do
    local at, text = uses + i * 4, row[FIXED_COUNT + i + 1]
    local kind, job = ARGV[at + 1], ARGV[at + 2]
    if kind == 'K' then
      local j = parse(text)
      j.lines = tonumber(j.lines) + tonumber(ARGV[at + 4])
      set[#set + 1] = 'j' .. job
      set[#set + 1] = render(j)
    elseif text then
      if kind == 'F' or kind == 'E' then drop(LEASES, job .. ':' .. run) else unindex(run, job, parse(text)) end
      gone[#gone + 1] = 'j' .. job
      jobs = jobs - 1
    end
  end
  if others ~= '' and jobs > kept_count then jobs = jobs - change_others(run, key, others, named, set, gone) end
  local granted = ''
  for i = 0, adds - 1 do
    local at = added + i * 11
    if add_job(run, tenant, at, hint, set) then granted = granted .. ARGV[at + 1] .. ',' end
  end
  jobs = jobs + adds

  local ts, ts_text = now, now_text
  if row[4] and tonumber(row[4]) > now then ts, ts_text = tonumber(row[4]), row[4] end
  local first = tonumber(row[3] or 0) + 1
  local last = push(run, ts_text, first - 1, pushed, events, 5, set)
  feed(run, ts_text, first, last)
  local next_version = new and '1' or text_of(tonumber(version) + 1)
  local size = #set
  set[size + 1], set[size + 2], set[size + 3], set[size + 4] = 'version', next_version, 'jobs', text_of(jobs)
  size = size + 4
  if last >= first or new then
    set[size + 1], set[size + 2], set[size + 3], set[size + 4] = 'events', text_of(last), 'last', ts_text
    size = size + 4
  end
  -- A mend of jobs leaves the row alone.
  if flags % 16 < 8 then
    set[size + 1], set[size + 2], set[size + 3], set[size + 4] = 'steps', ARGV[o + 6], 'state', ARGV[o + 8]
    if ARGV[o + 7] ~= '' then set[#set + 1] = 'failure'; set[#set + 1] = ARGV[o + 7] end
    if flags % 4 >= 2 and not row[6] then set[#set + 1] = 'started'; set[#set + 1] = ts_text end
    local terminal = flags % 2 == 1
    if terminal then set[#set + 1] = 'ended'; set[#set + 1] = ts_text end
    if status ~= row[2] then set[#set + 1] = 'status'; set[#set + 1] = status end
    local flow, ended = ARGV[o + 14], false
    if new then
      for field, value in pairs({ number = number, created = now_text, flow = flow, start = ARGV[o + 15],
        labels = ARGV[o + 17] }) do
        set[#set + 1] = field
        set[#set + 1] = value
      end
      flows[tenant .. '/' .. flow] = true
      for label in string.gmatch(ARGV[o + 17], '%S+') do
        put(base .. ':label:' .. tenant .. ':' .. label, number, match(run, '/(.+)$'))
      end
    end
    if terminal or status ~= row[2] then
      if not new then
        local more = call('HMGET', key, 'flow', 'number', 'ended')
        flow, number, ended = more[1], more[2], more[3]
      end
      relist(run, flow, number, row[2], ended, status, terminal and ts_text or ended, base .. ':ended')
    end
    if flags % 8 >= 4 then call('UNLINK', base .. ':state:run:' .. run) end
  end
  if #gone > 0 then spread({ 'HDEL', key }, gone, 1) end
  spread({ 'HSET', key }, set, 2)
  return next_version .. ' ' .. text_of(first) .. ' ' .. ts_text .. ' ' .. granted
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
