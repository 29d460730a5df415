-- Where receipts are listed, in one moment, so that one that goes on to another status is seen once. ARGV: seen, where to
-- begin, how many of each, then the lists.
local answers = { counted(), format('%.0f', us) }
for i = 4, #ARGV do
  for _, member in ipairs(call('ZRANGE', base .. ':receipts-by:' .. ARGV[i], ARGV[2], '-', 'BYLEX', 'REV', 'LIMIT', 0,
    ARGV[3])) do
    answers[#answers + 1] = member
  end
end
return answers
