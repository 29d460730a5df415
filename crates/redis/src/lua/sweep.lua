-- Expired leases and due timers, the longest due first; changes nothing but the caller's mark, and where leases are looked for.
-- ARGV: seen, limit.
local limit = tonumber(ARGV[2])
local function timers()
  local found = {}
  local members = call('ZRANGEBYSCORE', TIMERS, '-inf', now, 'WITHSCORES', 'LIMIT', 0, limit)
  for i = 1, #members, 2 do
    local job, run = match(members[i], '^(%-?%d+):(.+)$')
    local text = call('HGET', JOBS, job .. ':' .. run)
    if text then found[#found + 1] = members[i + 1] .. ' ' .. job .. ' ' .. run .. ' ' .. text end
  end
  return found
end

-- The run that an entry of the leases is about, when the first of its leases ends and when the first that has not ended yet does.
-- A format before had the job's key before the run.
local found, ahead = {}, nil
local function look(member, tell)
  local run = match(member, '^%-?%d+:(.+)$') or member
  local keys, texts = jobs_of(run)
  local first, later
  for k, key in ipairs(keys) do
    local expires = texts[k] and tonumber(match(texts[k], '^%x+ %d+ %d+ (%d+)'))
    if expires then
      if not first or expires < first then first = expires end
      if expires > now then
        if not later or expires < later then later = expires end
      elseif tell then
        found[#found + 1] = text_of(expires) .. ' ' .. key .. ' ' .. run .. ' ' .. texts[k]
      end
    end
  end
  return run, first, later
end
-- Puts an entry where it belongs, or takes it away. A server that is full refuses that, and a later sweep does it.
local function settle(member, run, first)
  if member ~= run or not first then redis.pcall('ZREM', LEASES, member) end
  if first then redis.pcall('ZADD', LEASES, first, run) end
end

-- Runs whose time has come: their leases have ended, or have been extended, or are gone.
local members = call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, limit)
for _, member in ipairs(members) do
  local run, first, later = look(member, true)
  settle(member, run, first)
  if later and (not ahead or later < ahead) then ahead = later end
end
-- What comes next, without those that were put off meanwhile, as far as a few looks tell.
local LOOKS = 16
for look_number = 1, LOOKS do
  local next_one = call('ZRANGEBYSCORE', LEASES, '(' .. now_text, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local member, score = next_one[1], tonumber(next_one[2])
  if not member then break end
  local run, first = look(member, false)
  if member == run and first == score then
    if not ahead or score < ahead then ahead = score end
    break
  end
  settle(member, run, first)
  if look_number == LOOKS and (not ahead or score < ahead) then ahead = score end
end
if #members == limit and #found == 0 then ahead = now end

local function timer_ahead() return call('ZRANGEBYSCORE', TIMERS, '(' .. now_text, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2] or '' end
-- Who only sweeps is told of a store that went back in time, too. One that is full goes on without.
if type(redis.pcall('HSET', KEYS[1], MARK_OF, n .. ' ' .. now_text)) == 'number' then mine = n end
return { counted(), format('%.0f', us), found, timers(), ahead and format('%.0f', ahead) or '', timer_ahead() }
