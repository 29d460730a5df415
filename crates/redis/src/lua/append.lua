-- ARGV: seen, who, count, then each append with its number of arguments first.
local function change(run, flow, at, order)
  local scope, field, value, ttl = ARGV[at + 6], ARGV[at + 7], ARGV[at + 8], ARGV[at + 9]
  if scope == '' then return end
  local owner
  if scope == 'run' then owner = 'run:' .. run
  elseif scope == 'flow' then owner = 'flow:' .. match(run, '^[^/]+') .. '/' .. flow
  else owner = 'tenant:' .. match(run, '^[^/]+') end
  local key = base .. ':state:' .. owner
  if value == '' and (scope == 'run' or ARGV[at + 10] == '1') then
    call('HDEL', key, field)
    return
  end
  local expires = '-'
  -- With several shards a deletion leaves a mark, so that no older value elsewhere comes back.
  if value == '' then expires = now_text elseif ttl ~= '' then expires = now + tonumber(ttl) end
  call('HSET', key, field, expires .. ' ' .. order .. ' ' .. value)
  if expires ~= '-' and value ~= '' then put(base .. ':expiring', expires, owner .. ' ' .. field) end
end

local function append(o)
  local run, job, attempt, token = ARGV[o + 2], ARGV[o + 3], ARGV[o + 4], ARGV[o + 5]
  local from, count, hint = tonumber(ARGV[o + 6]), tonumber(ARGV[o + 7]), tonumber(ARGV[o + 8])
  local key = base .. ':run:' .. run
  local row = call('HMGET', key, 'events', 'last', 'started', 'flow', 'j' .. job)
  local prefix = token .. ' ' .. attempt .. ' '
  if not row[5] or string.sub(row[5], 1, #prefix) ~= prefix then return 'S' end
  local j = parse(row[5])
  local there = tonumber(j.lines)
  if from > there then return 'S' end
  local known = there - from
  if known >= count then return tostring(there) end

  local lines = o + 8 + known * 10
  count = count - known
  local set, ts = {}, format('%.0f', math.max(now, tonumber(row[2])))
  for i = 0, count - 1 do
    -- The caller's number, so that the order of its batch holds across shards; the clock where there is one shard.
    change(run, row[4], lines + i * 10, hint > 0 and format('%.0f', hint + i) or tick())
    if ARGV[lines + i * 10 + 1] == 'step.started' and not row[3] then
      row[3] = ts
      set[#set + 1] = 'started'
      set[#set + 1] = ts
    end
  end
  local first = tonumber(row[1]) + 1
  local last = push(run, ts, first - 1, lines, count, 10, set)
  feed(run, ts, first, last)
  j.lines = there + count
  for _, part in ipairs({ 'events', last, 'last', ts, 'j' .. job, render(j) }) do set[#set + 1] = part end
  spread({ 'HSET', key }, set, 2)
  return tostring(there + count), true
end

local answers, landed, o = { '', format('%.0f', us) }, false, 3
for i = 1, tonumber(ARGV[3]) do
  local answer, wrote = append(o)
  answers[i + 2] = answer
  landed = landed or wrote
  o = o + tonumber(ARGV[o + 1])
end
if landed then finish(ARGV[2]) end
answers[1] = tostring(n)
return answers
