-- Claim a batch of messages for one owner, in one call.
--
-- KEYS[i]   string, one per (consumer group, message): "rmq:{group}:{message id}" (no braces)
--             absent                            it has no owner
--             "done"                            consumed, if its row still says so; its TTL is
--                                               the duplicate window
--             "<attempt>:<until>:<owner>"       a lease: number of the attempt, Redis time in ms
--                                               when it expires, token of its owner
--             "<attempt>:0:"                    released by its owner; the attempt still counts
--             A "?" before the owner: an earlier owner vanished.
-- ARGV[1]    how long an attempt is kept, milliseconds (TTL of the key)
-- ARGV[2i]   token of the owner that claims KEYS[i]
-- ARGV[2i+1] lease of that claim, milliseconds
--
-- Returns one text: an answer for each key, separated by blanks. An answer is word,attempt,in doubt
-- 0/1,milliseconds left of another owner's lease. (A client reads a text faster than an array.)
-- An expired lease stays as a key, so that the attempt of a dead process is counted.
-- The same token may ask again (its first answer was lost): it gets the same attempt.
-- Keys are independent of each other, so a cluster can be asked for one key at a time.

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
      if seen then  -- a value of another program counts as absent: the consume log decides
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
