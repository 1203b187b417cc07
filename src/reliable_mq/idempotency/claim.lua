-- Claim a batch of messages for one owner, in one call.
--
-- KEYS[i]   string, one per (consumer group, message): "rmq:{group}:{message id}" (no braces)
--             absent                            nobody has it
--             "done"                            consumed, if its row still says so; TTL is the
--                                               duplicate window
--             "<attempt>:<until>:<owner>"       a lease: number of the attempt, Redis time in ms
--                                               until which it holds, token of its owner
--             "<attempt>:0:"                    given back by its owner; the attempt is kept
--             A "?" before the owner says that one before it was never heard of again.
-- ARGV[1]    how long an attempt is remembered, milliseconds (TTL of the key)
-- ARGV[2i]   token of the owner that claims KEYS[i]
-- ARGV[2i+1] lease of that claim, milliseconds
--
-- Returns one text, an answer for each key with a blank between: word,attempt,in doubt 0/1,ms left
-- of another's lease. (A client reads an array element by element, a text at once.)
-- A lease that has passed stays as a key, so that the attempt of a process that died is counted.
-- The same token may ask again (its first answer was lost): it gets the same attempt.
-- Every key is judged by itself, so a cluster may be asked for one key at a time.

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local memory = ARGV[1]
local answers = {}

for i, key in ipairs(KEYS) do
  local token, lease = ARGV[2 * i], tonumber(ARGV[2 * i + 1])
  local value = redis.call('GET', key)
  if value == 'done' then
    answers[i] = 'done,0,0,0'
  else
    local attempt, doubt, ours, wait = 0, 0, false, 0
    if value then
      local seen, till, mark, owner = string.match(value, '^(%d+):(%d+):(%??)(.*)$')
      if seen then  -- a value of a foreign hand is treated as absent: the consume log decides
        attempt = tonumber(seen)
        ours = owner == token
        if mark == '?' then doubt = 1 end
        if owner ~= '' and not ours then
          doubt = 1
          wait = tonumber(till) - now
        end
      end
    end
    if wait > 0 then
      answers[i] = string.format('held,%d,0,%.0f', attempt, wait)
    else
      if not ours then attempt = attempt + 1 end
      local till, mark = string.format('%.0f', now + lease), doubt == 1 and '?' or ''
      redis.call('SET', key, attempt .. ':' .. till .. ':' .. mark .. token, 'PX', memory)
      answers[i] = string.format('%s,%d,%d,0', attempt > 1 and 'again' or 'first', attempt, doubt)
    end
  end
end
return table.concat(answers, ' ')
