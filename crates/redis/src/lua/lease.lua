-- Leases what a peek found, or, where another was quicker, what stands next in the same place.
-- ARGV: seen, worker, ttl, then for each: lane, priority, member, token.
local answers, o, taken = { '', format('%.0f', us) }, 3, false
local worker, expires = ARGV[2], now + tonumber(ARGV[3])
while o < #ARGV do
  local lane, priority, member, token = ARGV[o + 1], ARGV[o + 2], ARGV[o + 3], ARGV[o + 4]
  local key, answer = waits(priority, lane), ''
  if call('ZREM', key, member) == 0 then
    member = call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, 1)[1]
    if member then call('ZREM', key, member) end
  end
  if member then
    local job, run = match(member, '^%d+:(%-?%d+):(.+)$')
    local text = call('HGET', JOBS, job .. ':' .. run)
    if text then
      local j = parse(text)
      j.token, j.worker, j.leased, j.expires, j.lines, j.released = token, worker, now, expires, 0, 0
      text = render(j)
      call('HSET', JOBS, job .. ':' .. run, text)
      lease_until(run, expires)
      answer = job .. ' ' .. run .. ' ' .. text
    end
    put(base .. ':lanes', tick(), lane)
    taken = true
  end
  answers[#answers + 1] = answer
  o = o + 4
end
if taken then finish() end
answers[1] = counted()
return answers
