-- Extends or releases leases. ARGV: seen, verb, ttl, then for each: run, job, token.
local answers, o, wrote = { '', format('%.0f', us) }, 3, false
while o < #ARGV do
  local run, job, token = ARGV[o + 1], ARGV[o + 2], ARGV[o + 3]
  local row = call('HMGET', base .. ':run:' .. run, 'status', 'j' .. job)
  local j = row[2] and parse(row[2])
  if j and j.token == token and j.released == '0' then
    if ARGV[2] == 'extend' then
      j.expires = now + tonumber(ARGV[3])
    else
      j.released, j.expires = 1, math.min(tonumber(j.expires), now)
    end
    call('HSET', base .. ':run:' .. run, 'j' .. job, render(j))
    put(LEASES, j.expires, job .. ':' .. run)
    answers[#answers + 1] = 'H'
    wrote = true
  else
    answers[#answers + 1] = (row[1] and TERMINAL[row[1]]) and 'E' or 'L'
  end
  o = o + 3
end
if wrote then finish(ARGV[2] ~= 'extend' and 'release' or nil) end
answers[1] = tostring(n)
return answers
