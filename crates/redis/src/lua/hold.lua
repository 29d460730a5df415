-- Extends or releases leases. ARGV: seen, verb, ttl, then for each: run, job, token.
local answers, o, wrote = { '', format('%.0f', us) }, 3, false
while o < #ARGV do
  local run, job, token = ARGV[o + 1], ARGV[o + 2], ARGV[o + 3]
  local text = call('HGET', JOBS, job .. ':' .. run)
  local j = text and parse(text)
  if j and j.token == token and j.released == '0' then
    if ARGV[2] == 'extend' then
      j.expires = now + tonumber(ARGV[3])
    else
      j.released, j.expires = 1, math.min(tonumber(j.expires), now)
    end
    lease_until(run, j.expires)
    call('HSET', JOBS, job .. ':' .. run, render(j))
    answers[#answers + 1] = 'H'
    wrote = true
  else
    local row = read_row(run)
    answers[#answers + 1] = row and TERMINAL[word_of(row.status)] and 'E' or 'L'
  end
  o = o + 3
end
if wrote then finish(ARGV[2] ~= 'extend' and 'release' or nil) end
answers[1] = counted()
return answers
